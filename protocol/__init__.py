"""The contract between server and client, owned by neither side: questions, answers and how they travel."""
