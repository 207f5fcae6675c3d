"""Architectures of join state: SteMs, binary joins of STAIRs that keep it, STAIRs that move it.

Invariant: join state alone says which joins a tuple may go to, and makes each result once.
"""
