"""What engines' own CPU builds print at start, held against our arithmetic."""
