"""Why a hit has its score, and which region each word is closest to."""
