// A model that thinks first: a program that OpenAI clients use as `model`. It streams its reasoning, then
// answers, or calls one of the client's tools with arguments that always fit the tool's schema.

import {
  Constraint, Finish, ModelAnswer, ModelRequest, RequestTool, Sampling, Session, jsonText, refuse,
} from "symphony-lip";

const THINK = "First, in a line, what matters here:";

export function lip_main(): i32 {
  const request = ModelRequest.read();
  if (!request.messages.length && request.prompts.length != 1) {
    refuse("there has to be a conversation, or one prompt", "messages");
  }
  const thinking = request.body.integerOr("thinking_tokens", 32) as i32;
  const tools = wantedTools(request);
  // The conversation is computed once; the choices come one after the other.
  const branches = request.session().fanOut(request.n);
  const answers = ModelAnswer.several(request.n);
  for (let i = 0; i < request.n; i++) {
    thinkAndAnswer(branches[i], answers[i], request.sampling.branch(i), thinking, tools);
  }
  return 0;
}

function thinkAndAnswer(
  text: Session, answer: ModelAnswer, sampling: Sampling, thinking: i32, tools: Array<RequestTool>,
): void {
  text.append(THINK);
  const line = sampling.copy();
  line.maxTokens = thinking;
  line.stop = line.stop.concat(["\n"]);
  const thought = text.reply(line);
  for (let piece = thought.next(); piece !== null; piece = thought.next()) answer.reasoning(piece);
  text.append("\n");
  if (!tools.length) {
    const reply = text.reply(sampling);
    for (let piece = reply.next(); piece !== null; piece = reply.next()) answer.text(piece);
    answer.finishAs(reply.finish);
    return;
  }
  text.append("Call ");
  const tool = choose(text, tools);
  text.append(" with ");
  const held = sampling.copy();
  const schema = Constraint.tryJsonSchema(jsonText(tool.parameters));
  if (!schema.ok) refuse(`the schema of ${tool.name}: ${schema.reason}`, "tools");
  held.constraint = schema.value;
  const call = answer.call(tool.name);
  const written = text.reply(held);
  for (let piece = written.next(); piece !== null; piece = written.next()) call.arguments(piece);
  if (written.finish == Finish.LENGTH) answer.finishAs(written.finish);
}

/** Lets the model choose one of the tools. */
function choose(text: Session, tools: Array<RequestTool>): RequestTool {
  const names = tools.map<string>((tool: RequestTool) => tool.name);
  const one: Sampling = { constraint: Constraint.regex(names.join("|")) };
  return tools[max(names.indexOf(text.reply(one).text()), 0)];
}

/** The tools of which one is to be called; none where text is wanted. */
function wantedTools(request: ModelRequest): Array<RequestTool> {
  const last = request.messages.length - 1;
  const answered = last >= 0 && request.messages[last].role == "tool";
  const choice = request.toolChoice;
  // What its tools have said is to be told.
  if (choice == "none" || (choice == "auto" && answered)) return [];
  const wanted = new Array<RequestTool>(0);
  for (let i = 0; i < request.tools.length; i++) {
    const tool = request.tools[i];
    if (choice != "function" || tool.name == request.toolName) wanted.push(tool);
  }
  return wanted;
}
