"""Pages of docs/matrix/, each a text made of rows and of what is decided by them."""
