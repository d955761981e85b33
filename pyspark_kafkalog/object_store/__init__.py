"""Object stores (S3, GCS, Azure Blob Storage) as the rest of the package uses them. In reading order:

store     what a store can do: keys, requests, errors
location  URLs of object stores, and paths
settings  endpoint and credentials: options, Hadoop's settings, the environment; what is hidden in texts
address   a URL with its settings, for tasks
retries   how long requests are repeated; who holds a name after a create (put-if-absent), and a probe of that
client    the store behind a URL, by obstore, and what its errors mean
"""
