"""What a run did: figures, the report, its page, and the monitor of what runs now.

The invariant: a report is made of figures alone. Each task is counted once, however often Spark ran it.
Nothing here asks Spark, so tasks may load it too; importers name the modules.
"""
