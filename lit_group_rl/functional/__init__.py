"""Pure tensor mathematics: imports torch and numpy, nothing of ours outside this package."""
