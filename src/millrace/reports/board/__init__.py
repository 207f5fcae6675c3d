"""What runs now, and ran last: tasks tell of it while they work, a page on this machine shows it."""

from millrace import limits

limits.check_libraries("a live page")
