"""Object stores (S3, GCS, Azure Blob Storage) as the rest of the package uses them. In reading order:

store        what a store can do: keys, requests, errors
location     URLs of object stores, and paths
address      a location with its settings, as it travels to tasks
settings     endpoint and credentials: options, Hadoop's settings; what is hidden in texts
retries      how long requests are repeated; who holds a name after a create (put-if-absent)
probe        whether a store's put-if-absent decides among concurrent writers
client       the store behind a URL, by obstore
client_config, client_errors   what it is built with, what its errors mean
"""
