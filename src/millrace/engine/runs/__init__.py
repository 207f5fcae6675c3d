"""Running a block in one task: its sources, an eddy or a static plan, and its output.

Invariant: a block is checked before any of its sources is read; state is made in the task, and never sent
to it.
"""
