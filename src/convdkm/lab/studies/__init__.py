"""Studies: many tasks in one folder, made by one engine. Sweeps of settings, and comparisons."""
