"""The commands, one module each. Only this package prints. Each command imports slow modules only when it runs."""
