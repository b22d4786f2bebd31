"""Records and batches as bytes: checksums, codecs, frames, conversion. Nothing here knows a file or a socket. In reading
order:

batch       batches of magic 2: what they look like, cut, checked, given their offsets; records inside of them
messageset  messages of magic 0 and 1, and the wrappers around compressed ones
codec       gzip, snappy, lz4 and zstd, whole payloads at a time
crc         CRC32C and CRC32, also of bytes joined, without reading them again
murmur2     the hash by which a key chooses its partition
varint      numbers of variable length, read and written
endian      big-endian numbers, read and written
frame       requests cut out of what a connection brought and read with every bound checked; answers written
builder     batches made of records
convert     batches as older clients read them
upconvert   messages of magic 0 and 1 as batches of magic 2
rewrite     the header of a batch that goes on to another cluster
rawbatch    batches as Python sees them; transaction markers
columns     many batches as numpy columns, and a batch made smaller
"""
