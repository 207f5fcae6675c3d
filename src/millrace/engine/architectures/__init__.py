"""Architectures of join state: SteMs, binary joins of STAIRs that keep it, STAIRs that move it."""
