"""The commit log: KRaft metadata records, put-if-absent commit files, the image they add up to."""
