"""Read and send pictures: uploads, thumbnails, originals."""
