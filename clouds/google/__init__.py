"""What a cluster at Google Cloud is made of: GKE, and what it stands on. Only here are Google's libraries
imported.

`session` is the way in; a module each for what is made; `everything` puts them together and finds them again.
"""
