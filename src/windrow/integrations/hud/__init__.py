"""HUD: its task rows of three generations, an environment that plays the first of them, and rollouts in the form of its records.

The rows and the tool contract are held against the package `hud-python` where that installs (tests/interop/test_hud.py).
"""
