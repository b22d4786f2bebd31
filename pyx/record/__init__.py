"""Records and batches as bytes: checksums, codecs, framing, conversion. Nothing here knows a file or a socket."""
