"""Text generation: completions of prompts."""
