"""What only researchers need: baselines, studies (sweeps and comparisons), and the bench."""
