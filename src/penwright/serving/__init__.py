"""An HTTP server for trained runs: APIs that existing clients know, and a web page."""
