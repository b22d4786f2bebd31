package penstock;

import java.io.Serializable;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads a record's value, one JSON object, into a row of the declared columns, by the rules of valuerules.py. A value that
 * its column doesn't hold exactly gives a reason instead of a row. Janino compiles this (see eventreader.py), so it does
 * without what came after Java 7. A task has its own reader.
 */
public final class EventReader implements Serializable {
    private static final List KINDS = Arrays.asList(new String[] {
        "struct", "array", "map", "string", "boolean", "whole", "decimal", "float", "double", "date", "timestamp",
        "timestamp_ntz", "binary",
    });
    private static final int STRUCT = 0, ARRAY = 1, MAP = 2, STRING = 3, BOOLEAN = 4, WHOLE = 5, DECIMAL = 6, FLOAT = 7,
        DOUBLE = 8, DATE = 9, TIMESTAMP = 10, TIMESTAMP_NTZ = 11, BINARY = 12;
    private static final int MISFITS_MAX = 8; // named in one reason
    private static final int FLOAT_DIGITS = 6, DOUBLE_DIGITS = 15; // as many as every value within NEAR gives back
    private static final double FLOAT_NEAR = 1e30, DOUBLE_NEAR = 1e290;
    private static final int EXACT_DIGITS = 767; // a double has no more
    private static final long FAR = 1L << 40; // an exponent that no type reaches
    private static final byte[] TRUE = "true".getBytes(), FALSE = "false".getBytes(), NULL = "null".getBytes();
    private static final long[] POWERS = new long[19];
    static {
        POWERS[0] = 1;
        for (int i = 1; i < POWERS.length; i++) POWERS[i] = POWERS[i - 1] * 10;
    }

    /** A declared type, at the place that it has in an event. */
    public static final class Type implements Serializable {
        final int kind, first, second;
        final String place, words;
        final Type[] parts;
        final byte[][] names;
        final boolean[] required;
        final int[] slots; // of the names, by their hash; -1: none
        final int[] seen; // the last object in which each name was
        int objects, misfitIn;

        /** `first` and `second`: a whole number's bits, a decimal's precision and scale. `words`: its name and what it takes. */
        public Type(String kind, String place, String words, int first, int second, List parts, List names, List required) {
            this.kind = KINDS.indexOf(kind);
            if (this.kind < 0) throw new IllegalArgumentException(kind);
            this.place = place;
            this.words = words;
            this.first = first;
            this.second = second;
            this.parts = new Type[parts.size()];
            for (int i = 0; i < parts.size(); i++) this.parts[i] = (Type) parts.get(i);
            this.names = new byte[names.size()][];
            this.required = new boolean[names.size()];
            this.seen = new int[names.size()];
            int size = 4;
            while (size < 2 * names.size()) size *= 2;
            this.slots = new int[size];
            Arrays.fill(this.slots, -1);
            for (int i = 0; i < names.size(); i++) {
                this.required[i] = ((Boolean) required.get(i)).booleanValue();
                this.names[i] = ((String) names.get(i)).getBytes(StandardCharsets.UTF_8);
                int slot = hash(this.names[i], 0, this.names[i].length) & size - 1;
                while (this.slots[slot] >= 0) slot = slot + 1 & size - 1;
                this.slots[slot] = i;
            }
        }

        private static int hash(byte[] text, int from, int to) {
            int hash = to - from;
            for (int i = from; i < to; i++) hash = 31 * hash + text[i];
            return hash ^ hash >>> 15;
        }

        private boolean is(int i, byte[] text, int from, int to) {
            byte[] name = names[i];
            if (name.length != to - from) return false;
            for (int j = 0; j < name.length; j++) if (name[j] != text[from + j]) return false;
            return true;
        }

        /** The field of a name, -1: none; most objects have their names in one order. */
        int find(byte[] text, int from, int to, int expected) {
            if (expected < names.length && is(expected, text, from, to)) return expected;
            int slot = hash(text, from, to) & slots.length - 1;
            while (slots[slot] >= 0) {
                if (is(slots[slot], text, from, to)) return slots[slot];
                slot = slot + 1 & slots.length - 1;
            }
            return -1;
        }
    }

    /** What ends the reading of a value. */
    private static final class NotJson extends RuntimeException {
        NotJson(String words) { super(words, null, false, false); }
    }

    private final Type event;
    private final ZoneId zone;
    private final ZoneOffset fixed; // the zone's offset, if it has one only
    private final int depthMax, shownMax;
    private transient byte[] text;
    private transient int at;
    private transient boolean escaped; // whether the string that was read last has escapes
    private transient StringBuilder misfits;
    private transient int records, misfitCount;
    // A number: its digits without zeros around them, times ten to the power of an exponent.
    private transient byte[] digits;
    private transient int digitCount;
    private transient long exponent;
    private transient boolean negative;

    public EventReader(Type event, String zone, int depthMax, int shownMax) {
        this.event = event;
        this.zone = ZoneId.of(zone);
        this.fixed = this.zone.getRules().isFixedOffset() ? this.zone.getRules().getOffset(java.time.Instant.EPOCH) : null;
        this.depthMax = depthMax;
        this.shownMax = shownMax;
    }

    /** A row of the event, or null, and why there is none, or null. */
    public InternalRow read(byte[] value) {
        if (value == null) return new GenericInternalRow(new Object[] {null, UTF8String.fromString("no value")});
        text = value;
        at = 0;
        records++;
        misfits = null;
        misfitCount = 0;
        Object row = null;
        String why;
        try {
            row = whole();
            if (misfitCount > MISFITS_MAX) misfits.append("; and ").append(misfitCount - MISFITS_MAX).append(" more columns");
            why = misfits != null ? misfits.toString() : missing((InternalRow) row);
        } catch (NotJson error) {
            why = isUtf8() ? "not one JSON object: " + error.getMessage() : "not UTF-8";
        }
        if (why != null) return new GenericInternalRow(new Object[] {null, UTF8String.fromString(why)});
        return new GenericInternalRow(new Object[] {row, null});
    }

    private Object whole() {
        blanks();
        if (at == text.length) throw new NotJson("the value is empty");
        Object row = null;
        if (text[at] == '{') {
            row = object(event, 1);
        } else {
            int from = at;
            skip(1);
            throw new NotJson("it is " + shown(from, at));
        }
        blanks();
        if (at < text.length) throw new NotJson("more follows its end at byte " + at);
        return row;
    }

    private String missing(InternalRow row) {
        StringBuilder words = null;
        for (int i = 0; i < event.required.length; i++) {
            if (event.required[i] && row.isNullAt(i)) {
                words = words == null ? new StringBuilder() : words.append("; ");
                words.append('`').append(event.parts[i].place).append("` is missing");
            }
        }
        return words == null ? null : words.toString();
    }

    // JSON: each method begins at `at`, and leaves it behind what it has read

    private void blanks() {
        while (at < text.length) {
            byte c = text[at];
            if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
            at++;
        }
    }

    private NotJson wrong(String wanted) {
        if (at >= text.length) return cut();
        int c = text[at];
        String there = c > 0x20 && c < 0x7f ? "`" + (char) c + "`" : "0x" + Integer.toHexString(c & 0xff);
        return new NotJson("byte " + at + " is " + there + ", where " + wanted + " should be");
    }

    private NotJson cut() { return new NotJson("it ends in the middle, after " + text.length + " bytes"); }

    private void deeper(int depth) {
        if (depth > depthMax) throw new NotJson("it is nested deeper than " + depthMax + " at byte " + at);
    }

    /** A name and the colon behind it; where it begins and ends is between the quotes. */
    private void name() {
        if (at == text.length || text[at] != '"') throw wrong("a name in double quotes");
        string();
    }

    private void colon() {
        blanks();
        if (at == text.length || text[at] != ':') throw wrong("a colon");
        at++;
        blanks();
    }

    /** Whether another part follows in an object or array. */
    private boolean more(char close) {
        blanks();
        if (at < text.length && text[at] == ',') {
            at++;
            blanks();
            return true;
        }
        if (at == text.length || text[at] != close) throw wrong("a comma or `" + close + "`");
        at++;
        return false;
    }

    /** Whether an object or array is empty; else its first part begins. */
    private boolean empty(char close) {
        at++;
        blanks();
        if (at == text.length || text[at] != close) return false;
        at++;
        return true;
    }

    private Object object(Type type, int depth) {
        deeper(depth);
        Object[] values = new Object[type.names.length];
        int number = ++type.objects, expected = 0;
        if (empty('}')) return new GenericInternalRow(values);
        do {
            int from = at + 1;
            name();
            int to = at - 1, found;
            if (escaped) {
                byte[] plain = unescaped(from, to);
                found = plain == null ? -1 : type.find(plain, 0, plain.length, expected);
            } else {
                found = type.find(text, from, to, expected);
            }
            colon();
            if (found < 0) {
                skip(depth + 1);
                continue;
            }
            if (type.seen[found] == number) throw new NotJson("`" + type.parts[found].place + "` is in it twice");
            type.seen[found] = number;
            values[found] = value(type.parts[found], depth + 1);
            expected = found + 1;
        } while (more('}'));
        return new GenericInternalRow(values);
    }

    private Object map(Type type, int depth) {
        deeper(depth);
        java.util.ArrayList keys = new java.util.ArrayList(), values = new java.util.ArrayList();
        HashSet there = new HashSet();
        if (!empty('}')) {
            do {
                int from = at;
                name();
                Object key = string(type.parts[0], from);
                if (key != null && !there.add(key)) throw new NotJson(shown(from, at) + " is in `" + type.place + "` twice");
                keys.add(key);
                colon();
                values.add(value(type.parts[1], depth + 1));
            } while (more('}'));
        }
        return new ArrayBasedMapData(new GenericArrayData(keys.toArray()), new GenericArrayData(values.toArray()));
    }

    private Object array(Type type, int depth) {
        deeper(depth);
        java.util.ArrayList values = new java.util.ArrayList();
        if (!empty(']')) {
            do values.add(value(type.parts[0], depth + 1)); while (more(']'));
        }
        return new GenericArrayData(values.toArray());
    }

    private Object value(Type type, int depth) {
        if (at == text.length) throw cut();
        int from = at;
        switch (text[at]) {
            case '"':
                string();
                return ofString(type, from);
            case '{':
                if (type.kind == STRUCT) return object(type, depth);
                if (type.kind == MAP) return map(type, depth);
                skip(depth);
                break;
            case '[':
                if (type.kind == ARRAY) return array(type, depth);
                skip(depth);
                break;
            case 't':
                literal(TRUE);
                if (type.kind == BOOLEAN) return Boolean.TRUE;
                break;
            case 'f':
                literal(FALSE);
                if (type.kind == BOOLEAN) return Boolean.FALSE;
                break;
            case 'n':
                literal(NULL);
                return null;
            default:
                number();
                if (type.kind != STRING) return ofNumber(type, from, at, from);
        }
        return type.kind == STRING ? slice(from, at) : misfit(type, from);
    }

    /** Pass over a value that no column takes, or that one takes as it is. */
    private void skip(int depth) {
        if (at == text.length) throw cut();
        switch (text[at]) {
            case '"':
                string();
                return;
            case '{':
                deeper(depth);
                if (empty('}')) return;
                do {
                    name();
                    colon();
                    skip(depth + 1);
                } while (more('}'));
                return;
            case '[':
                deeper(depth);
                if (empty(']')) return;
                do skip(depth + 1); while (more(']'));
                return;
            case 't':
                literal(TRUE);
                return;
            case 'f':
                literal(FALSE);
                return;
            case 'n':
                literal(NULL);
                return;
            default:
                number();
        }
    }

    private static boolean isWord(int c) { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || isDigit(c) || c == '_'; }

    private static boolean isDigit(int c) { return c >= '0' && c <= '9'; }

    private NotJson noValue() {
        int to = at, from = at;
        while (to < text.length && (isWord(text[to]) || text[to] == '.' || text[to] == '-' || text[to] == '+')) to++;
        if (to == from) return wrong("a value");
        if (to == text.length && (isStart(TRUE, from) || isStart(FALSE, from) || isStart(NULL, from)
                || (text[from] == '-' || isDigit(text[from])) && "-+.eE".indexOf(text[to - 1]) >= 0)) return cut();
        return new NotJson(shown(from, to) + " at byte " + from + " is no JSON value");
    }

    /** Whether the text ends in the middle of a word. */
    private boolean isStart(byte[] word, int from) {
        if (text.length - from > word.length) return false;
        for (int i = from; i < text.length; i++) if (text[i] != word[i - from]) return false;
        return true;
    }

    private void literal(byte[] word) {
        for (int i = 0; i < word.length; i++) if (at + i == text.length || text[at + i] != word[i]) throw noValue();
        if (at + word.length < text.length && isWord(text[at + word.length])) throw noValue();
        at += word.length;
    }

    private void number() {
        int to = numberEnd(at, text.length);
        if (to == -1) throw noValue();
        at = to;
    }

    /** Where a number of JSON's grammar ends, -1: there is none. */
    private int numberEnd(int from, int to) {
        int i = from;
        if (i < to && text[i] == '-') i++;
        if (i == to || !isDigit(text[i])) return -1;
        if (text[i] == '0') i++;
        else while (i < to && isDigit(text[i])) i++;
        if (i < to && text[i] == '.') {
            int point = i++;
            while (i < to && isDigit(text[i])) i++;
            if (i == point + 1) return -1;
        }
        if (i < to && (text[i] == 'e' || text[i] == 'E')) {
            i++;
            if (i < to && (text[i] == '+' || text[i] == '-')) i++;
            int first = i;
            while (i < to && isDigit(text[i])) i++;
            if (i == first) return -1;
        }
        return i < to && isWord(text[i]) ? -1 : i;
    }

    private void string() {
        escaped = false;
        for (int i = at + 1; i < text.length; i++) {
            byte c = text[i];
            if (c == '"') {
                at = i + 1;
                return;
            }
            if (c == '\\') {
                escaped = true;
                i = escape(i + 1);
            } else if (c < 0) {
                i = character(i);
                if (i < 0) throw new NotJson("not UTF-8");
            } else if (c < 0x20) {
                at = i;
                throw wrong("an escaped character");
            }
        }
        throw cut();
    }

    /** The last byte of an escape, of which the backslash is read. */
    private int escape(int i) {
        if (i == text.length) throw cut();
        if (text[i] != 'u') {
            at = i;
            if ("\"\\/bfnrt".indexOf(text[i]) < 0) throw wrong("a letter of an escape");
            return i;
        }
        for (int end = i + 4; i < end;) {
            if (++i == text.length) throw cut();
            at = i;
            if (Character.digit(text[i], 16) < 0) throw wrong("a hexadecimal digit");
        }
        return i;
    }

    /** The last byte of a character of several bytes, -1: it is none of UTF-8. */
    private int character(int i) {
        int lead = text[i] & 0xff, more = lead < 0xc2 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : 0;
        if (more == 0 || i + more >= text.length) return -1;
        int next = text[i + 1] & 0xff;
        int low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80, high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (next < low || next > high) return -1;
        for (int j = 2; j <= more; j++) if ((text[i + j] & 0xc0) != 0x80) return -1;
        return i + more;
    }

    private boolean isUtf8() {
        for (int i = 0; i < text.length; i++) {
            if (text[i] < 0) {
                i = character(i);
                if (i < 0) return false;
            }
        }
        return true;
    }

    /** What a string says, null: half of a surrogate pair is in it. */
    private byte[] unescaped(int from, int to) {
        byte[] said = new byte[to - from];
        int length = 0;
        for (int i = from; i < to; i++) {
            if (text[i] != '\\') {
                said[length++] = text[i];
                continue;
            }
            int letter = text[++i];
            int place = "bfnrt".indexOf(letter);
            if (letter != 'u') {
                said[length++] = (byte) (place < 0 ? letter : (int) "\b\f\n\r\t".charAt(place));
                continue;
            }
            int c = hex(i + 1);
            i += 4;
            if (c >= 0xd800 && c < 0xe000) {
                if (c >= 0xdc00 || i + 6 >= to || text[i + 1] != '\\' || text[i + 2] != 'u') return null;
                int low = hex(i + 3);
                if (low < 0xdc00 || low >= 0xe000) return null;
                c = 0x10000 + (c - 0xd800 << 10) + (low - 0xdc00);
                i += 6;
            }
            if (c < 0x80) {
                said[length++] = (byte) c;
                continue;
            }
            if (c < 0x800) {
                said[length++] = (byte) (0xc0 | c >> 6);
            } else {
                if (c < 0x10000) {
                    said[length++] = (byte) (0xe0 | c >> 12);
                } else {
                    said[length++] = (byte) (0xf0 | c >> 18);
                    said[length++] = (byte) (0x80 | c >> 12 & 0x3f);
                }
                said[length++] = (byte) (0x80 | c >> 6 & 0x3f);
            }
            said[length++] = (byte) (0x80 | c & 0x3f);
        }
        return Arrays.copyOf(said, length);
    }

    private int hex(int i) {
        int value = 0;
        for (int j = 0; j < 4; j++) value = value << 4 | Character.digit(text[i + j], 16);
        return value;
    }

    private UTF8String slice(int from, int to) { return UTF8String.fromBytes(text, from, to - from); }

    // Values of the declared types; null is what they give for one that is none, after `misfit`

    private Object misfit(Type type, int from) { return misfit(type, from, type.words); }

    private Object misfit(Type type, int from, String words) {
        if (type.misfitIn == records) return null;
        type.misfitIn = records;
        if (++misfitCount > MISFITS_MAX) return null;
        misfits = misfits == null ? new StringBuilder() : misfits.append("; ");
        misfits.append('`').append(type.place).append("` is ").append(shown(from, at)).append(words);
        return null;
    }

    private String shown(int from, int to) {
        int end = to;
        if (to - from > shownMax) {
            end = from + shownMax;
            while ((text[end] & 0xc0) == 0x80) end--;
        }
        return new String(text, from, end - from, StandardCharsets.UTF_8) + (end < to ? "..." : "");
    }

    private Object ofString(Type type, int from) {
        int to = at - 1;
        switch (type.kind) {
            case STRING:
                return string(type, from);
            case DECIMAL:
                return numberEnd(from + 1, to) == to ? ofNumber(type, from + 1, to, from) : misfit(type, from);
            case DATE:
                return to - from == 11 && day(from + 1) ? Integer.valueOf((int) epochDay) : misfit(type, from);
            case TIMESTAMP:
            case TIMESTAMP_NTZ:
                return time(type, from, to);
            case BINARY:
                return escaped ? misfit(type, from) : binary(type, from, to);
            default:
                return misfit(type, from);
        }
    }

    private Object string(Type type, int from) {
        if (!escaped) return slice(from + 1, at - 1);
        byte[] said = unescaped(from + 1, at - 1);
        return said == null ? misfit(type, from) : UTF8String.fromBytes(said);
    }

    private Object binary(Type type, int from, int to) {
        byte[] sent = Arrays.copyOfRange(text, from + 1, to);
        try {
            byte[] bytes = java.util.Base64.getDecoder().decode(sent);
            // The decoder takes a text without its padding, or whose last bits say nothing.
            if (Arrays.equals(java.util.Base64.getEncoder().encode(bytes), sent)) return bytes;
        } catch (IllegalArgumentException error) {
            // it is none
        }
        return misfit(type, from);
    }

    /** The value of a number between two places, which stands for a value that begins at `begin`. */
    private Object ofNumber(Type type, int from, int to, int begin) {
        Object value = null;
        switch (type.kind) {
            case WHOLE:
                value = wholeNumber(type.first, from, to);
                break;
            case DECIMAL:
                value = decimal(type.first, type.second, from, to);
                break;
            case FLOAT:
                value = floating(false, from, to);
                break;
            case DOUBLE:
                value = floating(true, from, to);
                break;
        }
        return value == null ? misfit(type, begin) : value;
    }

    private void analyze(int from, int to) {
        negative = text[from] == '-';
        int i = negative ? from + 1 : from;
        digits = new byte[to - i];
        digitCount = 0;
        exponent = 0;
        boolean behindPoint = false;
        int zeros = 0; // that follow the digits so far
        for (; i < to && text[i] != 'e' && text[i] != 'E'; i++) {
            if (text[i] == '.') {
                behindPoint = true;
                continue;
            }
            if (behindPoint) exponent--;
            if (text[i] == '0') {
                zeros++;
                continue;
            }
            for (; digitCount > 0 && zeros > 0; zeros--) digits[digitCount++] = '0';
            zeros = 0;
            digits[digitCount++] = text[i];
        }
        exponent += zeros;
        if (i < to) {
            long said = 0;
            boolean down = text[++i] == '-';
            for (; i < to; i++) if (isDigit(text[i]) && said < FAR) said = said * 10 + (text[i] - '0');
            exponent += down ? -said : said;
        }
    }

    private Object wholeNumber(int bits, int from, int to) {
        long value = 0;
        int first = text[from] == '-' ? from + 1 : from;
        boolean plain = to - first <= 18;
        for (int i = first; i < to && plain; i++) {
            plain = isDigit(text[i]);
            value = value * 10 + (text[i] - '0');
        }
        if (plain) {
            if (first > from) value = -value;
        } else {
            analyze(from, to);
            if (digitCount > 0 && (exponent < 0 || digitCount + exponent > 19)) return null;
            BigDecimal number = sent();
            if (number.toBigInteger().bitLength() > 63) return null;
            value = number.longValue();
        }
        switch (bits) {
            case 8: return (byte) value == value ? Byte.valueOf((byte) value) : null;
            case 16: return (short) value == value ? Short.valueOf((short) value) : null;
            case 32: return (int) value == value ? Integer.valueOf((int) value) : null;
            default: return Long.valueOf(value);
        }
    }

    /** The number that was analyzed, whose exponent is small. */
    private BigDecimal sent() {
        if (digitCount == 0) return BigDecimal.ZERO;
        java.math.BigInteger whole = new java.math.BigInteger(new String(digits, 0, 0, digitCount));
        return new BigDecimal(negative ? whole.negate() : whole, (int) -exponent);
    }

    private Object decimal(int precision, int scale, int from, int to) {
        analyze(from, to);
        if (digitCount > 0 && (-exponent > scale || digitCount + exponent > precision - scale)) return null;
        if (precision > 18) return Decimal.apply(sent().setScale(scale), precision, scale);
        long unscaled = 0;
        for (int i = 0; i < digitCount; i++) unscaled = unscaled * 10 + (digits[i] - '0');
        if (digitCount > 0) unscaled *= POWERS[(int) exponent + scale];
        return Decimal.createUnsafe(negative ? -unscaled : unscaled, precision, scale);
    }

    /** The nearest floating-point number, if it gives the sent one back to as many digits as that has. */
    private Object floating(boolean isDouble, int from, int to) {
        String number = new String(text, 0, from, to - from);
        double value = isDouble ? Double.parseDouble(number) : Float.parseFloat(number);
        double size = Math.abs(value), near = isDouble ? DOUBLE_NEAR : FLOAT_NEAR;
        Object boxed = isDouble ? (Object) Double.valueOf(value) : (Object) Float.valueOf((float) value);
        if (to - from <= (isDouble ? DOUBLE_DIGITS : FLOAT_DIGITS) && size < near && size > 1 / near) return boxed;
        analyze(from, to);
        if (digitCount == 0) return boxed;
        if (size == 0 || Double.isInfinite(value) || digitCount > EXACT_DIGITS) return null;
        if (digitCount <= (isDouble ? DOUBLE_DIGITS : FLOAT_DIGITS) && size < near && size > 1 / near) return boxed;
        BigDecimal difference = new BigDecimal(value).subtract(sent()).abs();
        return difference.add(difference).compareTo(BigDecimal.ONE.scaleByPowerOfTen((int) exponent)) <= 0 ? boxed : null;
    }

    private transient long epochDay;

    private int two(int i) {
        int tens = text[i] - '0', ones = text[i + 1] - '0';
        return tens < 0 || tens > 9 || ones < 0 || ones > 9 ? -1 : tens * 10 + ones;
    }

    /** Whether a day, YYYY-MM-DD, begins here; it is `epochDay` then. */
    private boolean day(int i) {
        int century = two(i), rest = two(i + 2), month = two(i + 5), day = two(i + 8);
        if (century < 0 || rest < 0 || text[i + 4] != '-' || text[i + 7] != '-') return false;
        int year = century * 100 + rest;
        if (year < 1 || month < 1 || month > 12 || day < 1) return false;
        boolean leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        int days = month == 2 ? (leap ? 29 : 28) : month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
        if (day > days) return false;
        // Days since 1970 with years that begin in March.
        int y = month <= 2 ? year - 1 : year, m = month <= 2 ? month + 9 : month - 3;
        epochDay = 365L * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719468;
        return true;
    }

    private static final long MICROS = 1000000L, DAY_S = 86400L;
    private static final long FIRST_S = -62135596800L, LAST_S = 253402300799L; // of the years 1 to 9999

    /** YYYY-MM-DD, `T` or a blank, HH:MM[:SS[.F]], and for TIMESTAMP perhaps Z or +-HH[[:]MM]. */
    private Object time(Type type, int begin, int to) {
        int i = begin + 1;
        if (escaped || to - i < 16 || !day(i) || text[i + 10] != 'T' && text[i + 10] != ' ') return misfit(type, begin);
        int hour = two(i + 11), minute = two(i + 14), second = 0;
        if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || text[i + 13] != ':') return misfit(type, begin);
        long micros = 0;
        i += 16;
        if (i + 2 < to && text[i] == ':') {
            second = two(i + 1);
            if (second < 0 || second > 59) return misfit(type, begin);
            i += 3;
            if (i < to && text[i] == '.') {
                int first = ++i, unit = 100000;
                for (; i < to && isDigit(text[i]); i++, unit /= 10) {
                    if (unit == 0 && text[i] != '0') return misfit(type, begin);
                    micros += unit * (text[i] - '0');
                }
                if (i == first) return misfit(type, begin);
            }
        }
        long local = epochDay * DAY_S + hour * 3600 + minute * 60 + second;
        if (i == to) {
            if (type.kind == TIMESTAMP_NTZ) return Long.valueOf(local * MICROS + micros);
            if (fixed != null) return instant(type, begin, local - fixed.getTotalSeconds(), micros);
            List offsets = zone.getRules().getValidOffsets(LocalDateTime.ofEpochSecond(local, 0, ZoneOffset.UTC));
            if (offsets.size() != 1) {
                return misfit(type, begin, ", a time that " + zone + (offsets.isEmpty() ? " doesn't have" : " has twice"));
            }
            return instant(type, begin, local - ((ZoneOffset) offsets.get(0)).getTotalSeconds(), micros);
        }
        if (type.kind == TIMESTAMP_NTZ) return misfit(type, begin);
        int ahead = 0;
        if (text[i] == '+' || text[i] == '-') {
            int sign = text[i] == '-' ? -1 : 1, rest = to - ++i;
            if (rest < 2) return misfit(type, begin);
            int hours = two(i), minutes = 0;
            if (rest > 2) {
                boolean colon = text[i + 2] == ':';
                if (rest != (colon ? 5 : 4)) return misfit(type, begin);
                minutes = two(to - 2);
            }
            if (hours < 0 || minutes < 0 || minutes > 59 || hours * 60 + minutes > 18 * 60) return misfit(type, begin);
            ahead = sign * (hours * 60 + minutes) * 60;
        } else if (text[i] != 'Z' || i + 1 != to) {
            return misfit(type, begin);
        }
        return instant(type, begin, local - ahead, micros);
    }

    private Object instant(Type type, int begin, long seconds, long micros) {
        if (seconds < FIRST_S || seconds > LAST_S) return misfit(type, begin);
        return Long.valueOf(seconds * MICROS + micros);
    }
}
