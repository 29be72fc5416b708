//! Continues the text of the input, and sends what the model writes as it comes.

const lip = @import("lip");

const Choice = extern struct { token: u32, logprob: f32 };

var input: [16384]u8 = undefined;
var tokens: [4096]u32 = undefined;

/// Ends the run with an exit code if a call has failed; else returns its result.
fn check(result: i32, call: []const u8) u32 {
    if (result >= 0) return @intCast(result);
    _ = lip.log(3, call.ptr, call.len);
    lip.exit(-result);
}

fn sendText(choices: []const Choice) void {
    var ids: [64]u32 = undefined;
    var text: [4096]u8 = undefined;
    for (choices, 0..) |choice, i| ids[i] = choice.token;
    const length = check(lip.detokenize(&ids, choices.len, &text, text.len), "detokenize");
    if (length <= text.len) _ = check(lip.send(&text, length), "send");
}

export fn lip_main() i32 {
    const length = check(lip.input_read(&input, input.len), "input_read");
    if (length > input.len) return 2; // nothing was written
    const n = check(lip.tokenize(&input, length, &tokens, tokens.len), "tokenize");
    if (n == 0 or n > tokens.len) return 2;

    const opts = "\x81\xa3max\x40"; // MessagePack: {"max": 64}
    const kv: i32 = @intCast(check(lip.kv_create(), "kv_create"));
    const ticket: i32 = @intCast(check(lip.generate(kv, &tokens, n, opts, opts.len), "generate"));
    while (true) {
        var choices: [64]Choice = undefined;
        const place: [*]u8 = @ptrCast(&choices);
        const size = check(lip.claim(ticket, place, @sizeOf(@TypeOf(choices)), -1), "claim");
        if (size == 0) return 0; // it has ended
        sendText(choices[0 .. size / @sizeOf(Choice)]);
    }
}
