"""What arrives, from scans and indexes, and in which order.

Invariant: an EOT comes behind the tuples that it speaks for, of a relation or of a binding.
"""
