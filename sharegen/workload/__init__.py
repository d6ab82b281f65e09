"""What to ask: recipes, problems, prompts."""
