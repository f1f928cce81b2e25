"""The pod network's names and addresses: DNS, Services, and ways in and out."""
