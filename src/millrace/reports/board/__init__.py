"""What runs now, and ran last: tasks tell of it while they work, a page on this machine shows it.

The invariant: memory is bounded whatever runs, and no task waits or fails because nobody listens.
"""

from millrace import limits

limits.check_libraries("a live page")
