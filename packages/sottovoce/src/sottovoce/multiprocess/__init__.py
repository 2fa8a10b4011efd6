"""The same rounds on several processes, on one machine or many."""
