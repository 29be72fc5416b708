// The outside: its input is {"tool": name, "url": URL}; the messages tell what came.

import {
  Arguments, Encoder, HttpRequest, Json, callTool, check, describe, inputText, listTools, send, waitAll,
} from "symphony-lip";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const name = job.at("tool").string();
  const url = job.at("url").string();

  const tools = listTools().unwrap();
  for (let i = 0; i < tools.length; i++) {
    if (tools[i].name == name) {
      const properties = tools[i].schema.at("properties");
      tell(`listed ${tools[i].description} ${properties.keys.join(",")}`);
    }
  }
  const list = new Encoder().array(2).integer(-1).float(0.5).bytes();
  const given = new Arguments().text("text", "é").integer("n", 7).boolean("yes", true);
  const calls = [callTool(name, given.encoded("list", list)), callTool(name), callTool("none.at")];
  waitAll(calls);
  for (let i = 0; i < calls.length; i++) {
    const answer = calls[i].answer();
    if (answer.ok) tell(`tool ${answer.unwrap().ok} ${answer.unwrap().content}`);
    else tell(`tool ${describe(answer.errno)}`);
  }
  const slow = callTool("t.sleep", new Arguments().integer("seconds", 600), 20);
  tell(`slow ${describe(slow.answer().errno)}`);

  const request = new HttpRequest(url + "/a").header("x-a", "1").post("body");
  const response = request.send().response().unwrap();
  tell(`http ${response.status} ${response.ok} ${response.text}`);
  tell(`kind ${response.headers.get("content-type").split(";")[0]}`);
  const wait = new HttpRequest(url + "/slow");
  wait.timeoutMs = 20;
  tell(`late ${describe(wait.send().response().errno)}`);
  tell(`refused ${describe(new HttpRequest("http://10.0.0.1/").send().response().errno)}`);
  tell(`bad ${describe(new HttpRequest("nothing").send().response().errno)}`);
  return 0;
}

function tell(text: string): void {
  check(send(text), "send");
}
