"""Adapters as objects: the depot of each is in the object, so that another would have its own."""

from broken import FindsNothing, SecretInDetails
from depot import Sound

sound = Sound()
secret_in_details = SecretInDetails()
finds_nothing = FindsNothing()
