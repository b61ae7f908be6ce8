"""A server for trained runs on this machine: interfaces that existing clients know, and a page."""
