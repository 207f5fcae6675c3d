"""Eddies: Continuously Adaptive Query Processing (Avnur & Hellerstein 2000)."""
