"""Object stores (S3, GCS, Azure Blob Storage) as the rest of the package uses them. In reading order:

store        what a store can do: keys, requests, errors
location     URLs of object stores, and paths
create       the rule for put-if-absent: who holds a name
"""
