"""Reports as pages of HTML.

The invariant: a page is one file without a script and fetches nothing, so it reads the same on any machine.
"""
