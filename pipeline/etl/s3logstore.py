"""Delta's commits on S3, each a put that the store refuses if the version is there.

Delta brings none for S3 that knows of a second driver without a database beside it: its S3SingleDriverLogStore asks whether
the file is there, and then writes it. This one writes by a conditional put. It is Java, since Delta makes it by its class's
name. Only drivers commit, so no executor needs it.

It lists the log without `delta.enableFastS3AListFrom`, whatever the settings say: with that Delta 4.4.0 takes files of folders
inside the log for commits, and fails or reads a wrong snapshot. Delta 4.4.1 mends it.
"""

from __future__ import annotations

from penstock.pipeline.etl.javaclasses import JavaClass

CLASS = "penstock.S3LogStore"
CONDITION = "fs.option.create.conditional.overwrite"
"""The option by which Hadoop's client for S3 creates a file with `If-None-Match: *`."""
FAST_LISTING = "delta.enableFastS3AListFrom"
REFUSED = "org.apache.hadoop.fs.s3a.RemoteFileChangedException"
"""What that client makes of the store's answer that the condition doesn't hold."""

SOURCE = f"""
package penstock;

public class S3LogStore extends io.delta.storage.S3SingleDriverLogStore {{
    public S3LogStore(org.apache.hadoop.conf.Configuration settings) {{ super(listingWhole(settings)); }}

    private static org.apache.hadoop.conf.Configuration listingWhole(org.apache.hadoop.conf.Configuration given) {{
        org.apache.hadoop.conf.Configuration settings = new org.apache.hadoop.conf.Configuration(given);
        settings.setBoolean("{FAST_LISTING}", false);
        return settings;
    }}

    public void write(
        org.apache.hadoop.fs.Path path, java.util.Iterator actions, Boolean overwrite,
        org.apache.hadoop.conf.Configuration settings
    ) throws java.io.IOException {{
        if (overwrite.booleanValue()) {{ super.write(path, actions, overwrite, settings); return; }}
        org.apache.hadoop.fs.FSDataOutputStreamBuilder builder = path.getFileSystem(settings).createFile(path);
        builder.must("{CONDITION}", true);
        org.apache.hadoop.fs.FSDataOutputStream stream = (org.apache.hadoop.fs.FSDataOutputStream) builder.build();
        boolean written = false;
        try {{
            while (actions.hasNext()) {{
                stream.write(((String) actions.next() + "\\n").getBytes(java.nio.charset.StandardCharsets.UTF_8));
            }}
            written = true;
        }} finally {{
            if (!written) {{ stream.abort(); }}
        }}
        try {{
            stream.close();
        }} catch ({REFUSED} there) {{
            throw new java.nio.file.FileAlreadyExistsException(path.toString());
        }}
    }}
}}
"""

STORE = JavaClass(CLASS, SOURCE)
