"""Using State Modules for Adaptive Query Processing (Raman, Deshpande & Hellerstein 2003)."""
