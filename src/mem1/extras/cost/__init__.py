"""What appending costs against rewriting, under a provider's prices and prompt caching (`mem1 cost`)."""
