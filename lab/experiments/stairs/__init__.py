"""Lifting the Burden of History from Adaptive Query Processing (Deshpande & Hellerstein 2004)."""
