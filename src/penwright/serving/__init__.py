"""An HTTP server for trained runs: APIs for existing clients, and a web page."""
