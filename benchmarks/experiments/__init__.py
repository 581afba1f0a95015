"""The experiments of the changelog's and the cache's documents, run again here, with pictures beside their figures."""
