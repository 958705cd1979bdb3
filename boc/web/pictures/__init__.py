"""Pictures as the server reads and sends them: uploads, thumbnails, originals."""
