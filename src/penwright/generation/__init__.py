"""Text generation: prompt in, completion out."""
