// HTTP, as far as the operator lets the tenant: nothing, where nothing is allowed (EACCES).

import { Errno, Result } from "./errno";
import { failure, named, success } from "./failure";
import { Decoder, Encoder } from "./msgpack";
import * as raw from "./raw";
import { Ticket } from "./tickets";
import { decodeUtf8, encodeUtf8 } from "./utf8";

/** A request to be; `send` asks. */
export class HttpRequest {
  /** In capitals. */
  method: string = "GET";
  /** What is handed over. */
  body: ArrayBuffer = new ArrayBuffer(0);
  /** How long all of it may take; 0: 30 s. At most 120 s. */
  timeoutMs: i64 = 0;
  private headers: Encoder = new Encoder();
  private count: i32 = 0;

  constructor(
    /** http:// or https://, and what follows. */
    readonly url: string,
  ) {}

  /** One header more. Those that say where a request ends and whom it is for are the server's. */
  header(name: string, value: string): HttpRequest {
    this.headers.text(name).text(value);
    this.count++;
    return this;
  }

  /** Hands a text over, by POST. */
  post(text: string): HttpRequest {
    this.method = "POST";
    this.body = encodeUtf8(text);
    return this;
  }

  /** Asks. */
  send(): HttpCall {
    const request = new Encoder().map(this.timeoutMs > 0 ? 5 : 4);
    request.text("method").text(this.method).text("url").text(this.url);
    request.text("body").binary(this.body);
    request.text("headers").map(this.count).encoded(this.headers.bytes());
    if (this.timeoutMs > 0) request.text("timeout_ms").integer(this.timeoutMs);
    const bytes = request.bytes();
    const call = named("HttpRequest.send", this.url);
    return new HttpCall(raw.http(changetype<usize>(bytes), bytes.byteLength), call);
  }
}

/** What a server answered. */
export class HttpResponse {
  /** Its status. */
  status: i32 = 0;
  /** Its headers; names in lower case, several of one name joined. */
  readonly headers: Map<string, string> = new Map<string, string>();
  /** Its body, as it came. */
  body: ArrayBuffer = new ArrayBuffer(0);

  /** Whether the status says that it went well: 200 to 299. */
  get ok(): bool {
    return this.status >= 200 && this.status < 300;
  }

  /** The body as text. */
  get text(): string {
    return decodeUtf8(this.body);
  }
}

/** A request under way. */
export class HttpCall extends Ticket {
  /** Suspends until the answer is there. A status such as 404 is one. EACCES: not allowed. */
  response(): HttpResponse {
    return this.tryResponse().value;
  }

  tryResponse(): Result<HttpResponse> {
    const bytes = this.tryBytes();
    if (!bytes.ok) return this.error<HttpResponse>();
    const decoder = new Decoder(this.payload);
    const response = new HttpResponse();
    for (let pairs = decoder.map(); pairs > 0; pairs--) {
      const key = decoder.text();
      if (key == "status") response.status = decoder.integer() as i32;
      else if (key == "body") response.body = decoder.binary();
      else if (key == "headers") readHeaders(decoder, response.headers);
      else decoder.skip();
    }
    if (!decoder.finished) return failure<HttpResponse>(Errno.EIO, this.call);
    return success(response);
  }
}

function readHeaders(decoder: Decoder, headers: Map<string, string>): void {
  for (let pairs = decoder.map(); pairs > 0; pairs--) {
    const name = decoder.text();
    headers.set(name, decoder.text());
  }
}
