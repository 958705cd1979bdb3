"""What turns images and sentences into vectors. torch lives in this package and nowhere else."""
