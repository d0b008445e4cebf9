"""How operations run: memory layout, pieces of maps, compiled functions, recorded steps."""
