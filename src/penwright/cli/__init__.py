"""The commands, one module each. Nothing else prints. Each command imports slow modules only when it runs."""
