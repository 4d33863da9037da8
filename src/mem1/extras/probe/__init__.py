"""What a memory for chat agents keeps: facts planted in transcripts, folded many times, and sought (`mem1 probe`)."""
