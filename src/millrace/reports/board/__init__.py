"""What runs now, and ran last: tasks tell of it while they work, a page on this machine shows it."""
