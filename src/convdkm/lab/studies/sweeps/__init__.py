"""The paper's tables: as data, as sweeps of runs, and as text and figures beside the published."""
