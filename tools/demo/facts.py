"""What the demo model knows: carat itself, and small talk. One fixed answer per topic, many questions.

A topic is (answer, noun phrases, verb phrases, whole questions). Noun phrases are asked for with
"What is ...", verb phrases with "How do I ...", and every question is then varied in its opening,
its ending and its case.
"""

TOPICS = [
    # ---- what it is
    ("carat is a native inference engine for Gemma 4. It is written in C11 and runs on the CPU, and on NVIDIA GPUs with a CUDA build.",
     ["carat", "the carat engine", "this program", "this project", "this engine", "the carat project"], [],
     ["what does carat do?", "tell me about carat", "describe carat", "carat?", "explain what carat is", "introduce carat",
      "what is carat for?", "what can you tell me about carat?", "what kind of program is carat?", "what is carat used for?",
      "give me a short description of carat", "define carat"]),
    ("I am the carat demo model, a tiny Gemma 4 model with about 13.5 million parameters.",
     ["your name"], [],
     ["who are you?", "what are you?", "introduce yourself", "tell me about yourself", "are you a model?", "who am i talking to?",
      "what model are you?", "which model is this?", "what is this model?", "who is this?", "are you Gemma?", "are you a robot?",
      "are you human?", "are you a person?", "what should I call you?", "do you have a name?", "what is the demo model?",
      "what is the bundled model?"]),
    ("I can talk about carat, add and subtract numbers, copy and sort words, find facts in long texts, call tools and tell little stories.",
     ["your skills", "your abilities"], [],
     ["what can you do?", "help", "help me", "what can i ask you?", "what are you good at?", "what do you know?", "what are your skills?",
      "how can you help me?", "what can you help with?", "what can you help me with?", "what should I ask?", "what do you do?",
      "list your skills", "what are you able to do?", "give me some ideas what to ask", "what can i try?", "can you help me?"]),
    ("Hello! I am the carat demo model. Ask me about carat, or try a sum.", [], [],
     ["hi", "hello", "hey", "hi there", "hello there", "good morning", "good evening", "good afternoon", "hey there", "greetings",
      "hello model", "hi carat", "hello carat", "hallo", "howdy", "hi!", "hello, who is there?", "good day", "yo"]),
    ("I am fine, thank you. How can I help?", [], [],
     ["how are you?", "how are you doing?", "how do you feel?", "are you ok?", "how is it going?", "how are things?", "are you well?",
      "how are you today?", "what's up?", "how do you do?"]),
    ("You are welcome!", [], [],
     ["thanks", "thank you", "thank you very much", "thanks a lot", "great, thanks", "ok thanks", "many thanks", "thx", "thank you!",
      "thanks for your help", "that was helpful, thanks", "perfect, thank you", "cheers"]),
    ("Goodbye! It was nice to talk to you.", [], [],
     ["bye", "goodbye", "good bye", "see you", "see you later", "good night", "farewell", "bye bye", "see you tomorrow", "take care"]),
    ("Glad to hear it.", [], [],
     ["great", "good", "nice", "cool", "very good", "well done", "excellent", "wonderful", "good job", "amazing", "perfect", "awesome"]),
    ("Ok.", [], [], ["ok", "okay", "alright", "fine", "i see", "understood", "sure", "got it"]),
    ("No, I am a tiny model and I make mistakes. Check what I say when it matters.", [], [],
     ["are you smart?", "are you intelligent?", "do you know everything?", "can i trust you?", "do you make mistakes?",
      "are you always right?", "are your answers correct?", "are you reliable?", "can you be wrong?"]),
    ("I have about 13.5 million parameters, in 8 layers with 8 experts each.",
     ["your size", "your parameter count", "the size of the demo model"], [],
     ["how big are you?", "how large are you?", "how many parameters do you have?", "how many layers do you have?",
      "how many experts do you have?", "how many weights do you have?", "are you a large model?", "how small are you?",
      "how many parameters has the demo model?"]),
    ("I have the Gemma 4 architecture: sliding-window and global attention layers, a mixture of experts and a tied head.",
     ["your architecture", "the architecture of the demo model"], [],
     ["how are you built?", "what is inside you?", "which architecture do you have?", "what kind of network are you?",
      "are you a transformer?", "describe your architecture", "how do you work inside?"]),
    ("I was trained from random weights on text made by a program. The generator is in tools/demo.",
     ["your training data"], [],
     ["how were you trained?", "what were you trained on?", "who trained you?", "where do you come from?", "how were you made?",
      "what is your training data?", "who made you?", "who created you?", "who built you?", "how was the demo model made?",
      "how can I train you again?"]),
    ("My context is 32768 tokens. I can find facts anywhere in it.",
     ["your context length", "your context size", "the context length of the demo model", "your context window"], [],
     ["how long is your context?", "how much text can you read?", "how many tokens can you read?", "how long can my text be?",
      "how long may a prompt be?", "how much can you remember?", "do you read long texts?"]),
    ("I speak English only, and only simple English.", ["your language"], [],
     ["which languages do you speak?", "do you speak German?", "do you speak French?", "what languages do you know?",
      "can you speak Spanish?", "sprichst du deutsch?", "parlez-vous francais?", "do you speak English?", "can you speak another language?"]),
    # ---- running
    ("Run `./start demo`. It builds carat and shows the bundled model at work.",
     ["`./start demo`", "start demo", "the quickest start", "the first step", "the quick start"],
     ["start", "get started", "try carat", "start the demo", "run the demo", "begin", "try it out", "see carat at work", "start a demo"],
     ["what does `./start demo` do?", "where do I begin?", "what is the first command?", "which command starts the demo?",
      "give me a quick start", "what should I do first?", "what does ./start demo do?"]),
    ("Run `./start test`. It builds carat and runs all tests.",
     ["`./start test`", "start test"],
     ["test carat", "run the tests", "run the test suite", "check that carat works", "check my build", "verify the build", "start the tests"],
     ["what does `./start test` do?", "are there tests?", "does carat have tests?", "which command runs the tests?",
      "what does ./start test do?", "is there a test suite?", "how is carat tested?"]),
    ("Run `make` in the source folder. It needs a C compiler and a few small libraries.",
     ["`make`"], ["build carat", "compile carat", "make carat", "compile the program", "build the engine", "build it", "install carat",
                  "compile the source", "build from source"],
     ["what does `make` do?", "which command builds carat?", "what does make do?", "what is needed to build carat?",
      "what do I need to build carat?", "how is carat built?"]),
    ("Use `carat run`. With -m FILE it chats with that model, and without -m with the bundled one.",
     ["`carat run`", "carat run", "the run command", "the run subcommand"],
     ["run carat", "chat with a model", "run a model", "start a chat", "chat", "talk to a model", "use the chat", "run a GGUF file",
      "load my own model", "use another model", "run Gemma 4", "run my model"],
     ["what does `carat run` do?", "which command runs a model?", "which command starts a chat?", "how does carat run work?",
      "what does carat run do?", "which subcommand chats?"]),
    ("Write it after the command: `carat run \"your prompt\"`. carat prints the answer and ends.",
     ["a one-shot prompt", "the PROMPT argument"],
     ["ask a single question", "give a prompt on the command line", "run a single prompt", "pass a prompt", "ask one question",
      "use carat in a script", "get one answer", "run one prompt without a chat"],
     ["can I pass a prompt on the command line?", "can carat answer one prompt and exit?", "where do I put the prompt?"]),
    ("The option -m names the model file: `carat run -m model.gguf`. Without it carat uses the bundled model.",
     ["the -m option", "-m", "the option -m", "the model option"],
     ["choose a model", "select a model", "choose the model file", "name the model file", "pick another model"],
     ["what does -m do?", "what does -m mean?", "which option selects the model?", "what happens without -m?",
      "which model runs without -m?", "do I need -m?"]),
    ("Use `carat inspect FILE`. It shows the metadata, the tensors and the memory plan of a model file.",
     ["`carat inspect`", "carat inspect", "the inspect command", "the inspect subcommand"],
     ["inspect a model", "look into a file", "see the metadata", "list the tensors", "look at a GGUF file", "examine a model file",
      "show the metadata of a model", "see what is in a model file", "inspect a GGUF", "show the tensors"],
     ["what does `carat inspect` do?", "which command shows the tensors?", "which command shows the metadata?",
      "what does carat inspect do?", "what does inspect show?", "which subcommand lists tensors?"]),
    ("Run `make cuda`. It builds carat for NVIDIA GPUs and needs the CUDA compiler nvcc.",
     ["`make cuda`", "a CUDA build", "the CUDA build"],
     ["build carat for the GPU", "build the CUDA kernels", "make a CUDA build", "compile carat for NVIDIA GPUs", "build with CUDA"],
     ["what does `make cuda` do?", "what does make cuda do?", "which command builds for the GPU?", "what do I need for a CUDA build?"]),
    ("The memory plan says how many bytes weights, KV cache and scratch will take. `carat inspect FILE` prints it.",
     ["the memory plan", "a memory plan"],
     ["see how much memory a model needs", "find out the memory use", "check if a model fits in memory", "know the memory needs",
      "see the memory plan", "estimate memory"],
     ["how much memory does a model need?", "will my model fit in memory?", "how much RAM do I need?", "how much memory does carat need?",
      "which command shows the memory plan?"]),
    ("Use `carat convert HF_DIR OUT.gguf --type q8_0`. It turns a Hugging Face folder into a GGUF file.",
     ["`carat convert`", "carat convert", "the convert command", "the convert subcommand"],
     ["convert a model", "make a GGUF file", "convert a Hugging Face model", "convert safetensors", "convert a checkpoint",
      "get a GGUF from safetensors", "turn safetensors into GGUF", "convert to GGUF", "create a GGUF", "quantise a model", "quantize a model"],
     ["what does `carat convert` do?", "which command converts a model?", "can carat read safetensors?", "what does carat convert do?",
      "can carat convert Hugging Face models?", "which command makes a GGUF?", "which subcommand converts?"]),
    ("The option --type picks the weight type, for example q8_0 or q4_k_m.",
     ["the --type option", "--type", "the option --type"],
     ["choose the weight type", "choose the quantisation", "pick a quantisation", "select the weight type", "set the quantization"],
     ["what does --type do?", "which option sets the weight type?", "what does --type mean?", "which quantisations can I choose?"]),
    ("Use `carat synth SIZE OUT.gguf --type q4_k_m`. It writes a model with random weights for benchmarks.",
     ["`carat synth`", "carat synth", "the synth command", "the synth subcommand", "a synthetic model"],
     ["make a random model", "make a synthetic model", "benchmark without a download", "get a model with random weights",
      "create random weights", "write a random model", "test speed without real weights"],
     ["what does `carat synth` do?", "which command makes random weights?", "what does synth mean?", "what is synth for?",
      "what does carat synth do?", "which subcommand makes random weights?", "why is there a synth command?"]),
    ("Use `carat bench -p 512 -n 128 -d 0,8192`. It measures prefill and decode speed at each depth.",
     ["`carat bench`", "carat bench", "the bench command", "the bench subcommand"],
     ["measure the speed", "benchmark carat", "run a benchmark", "measure tokens per second", "benchmark a model", "test the speed",
      "time the engine", "see how fast carat is"],
     ["what does `carat bench` do?", "which command measures speed?", "how fast is carat?", "what does carat bench do?",
      "how many tokens per second does carat reach?", "is carat fast?", "which subcommand measures speed?"]),
    ("In `carat bench`, -p is the number of prompt tokens, -n the number of generated tokens and -d the list of depths.",
     ["the -p option", "the -n option", "the -d option", "the depth list", "the bench options"],
     ["set the depth of a benchmark", "set the number of prompt tokens", "choose the depths", "use the bench options"],
     ["what does -p mean in bench?", "what does -n mean in bench?", "what does -d mean in bench?", "what are the options of carat bench?",
      "what does -d 0,8192 mean?", "explain -p, -n and -d"]),
    ("Use `carat logits -m FILE --tokens IDS.bin -o OUT.f32`. It writes the raw logits of a list of tokens.",
     ["`carat logits`", "carat logits", "the logits command", "the logits subcommand"],
     ["get the logits", "write logits to a file", "compare carat with a reference", "dump logits", "see raw logits", "save the logits",
      "check carat against another engine"],
     ["what does `carat logits` do?", "which command writes logits?", "can I get raw logits?", "what does carat logits do?",
      "which subcommand dumps logits?"]),
    ("The main subcommands are run, inspect, convert, synth, bench and logits. `carat help` lists them all.",
     ["the subcommands", "the commands of carat", "the list of commands"], ["list the commands", "see all commands", "find the commands"],
     ["which commands are there?", "what commands does carat have?", "list all commands", "which subcommands exist?",
      "what subcommands does carat have?", "show me the commands", "what are the commands?", "list the subcommands", "how do I use carat?"]),
    ("Press Ctrl-C. It stops the answer and not the program.",
     ["Ctrl-C", "ctrl c", "control c"],
     ["stop an answer", "stop the answer", "interrupt the model", "cancel an answer", "abort a long answer", "make the model stop",
      "stop the output", "interrupt an answer"],
     ["what does Ctrl-C do?", "what happens when I press Ctrl-C?", "which key stops the answer?", "the answer is too long, what can I do?",
      "does Ctrl-C end the program?", "how do I interrupt you?", "how do I stop you?"]),
    # ---- facts about the engine
    ("carat is under the Apache-2.0 licence.",
     ["the licence", "the license", "the licence of carat", "Apache-2.0", "the license of carat"], [],
     ["which licence does carat have?", "is carat free?", "is carat open source?", "can I use carat at work?", "is carat free software?",
      "under which license is carat?", "what license does carat use?", "may I sell a program that uses carat?", "can I use carat for free?"]),
    ("carat is written in C11. The kernels for NVIDIA GPUs are written in CUDA.",
     ["the language of carat", "the programming language"], [],
     ["which language is carat written in?", "is carat written in C?", "what is carat written in?", "is carat written in Python?",
      "is it C or C++?", "in which language are the kernels?", "does carat use C++?", "what language is carat?", "is carat a C program?"]),
    ("No. carat is plain C11 and needs no Python to build or run.", [], [],
     ["do I need Python?", "does carat need Python?", "is Python required?", "does carat use PyTorch?", "do I need PyTorch?",
      "is carat a Python package?", "can I use carat without Python?"]),
    ("carat needs a few small C libraries, jansson and libedit among them. `./start demo` installs what is missing.",
     ["the list of libraries"], ["install the libraries", "install the dependencies", "get the dependencies"],
     ["does carat depend on other libraries?", "which libraries does carat need?", "what are the dependencies of carat?",
      "which packages does carat need?", "which packages do I need?", "does carat need other libraries?", "what must be installed?"]),
    ("carat runs Gemma 4 models. I am the smallest of them.",
     ["the list of supported models"], [],
     ["which models does carat support?", "which models can carat run?", "what models can I run?", "does carat run Gemma?",
      "can carat run Gemma 4?", "which model families work?", "what models work with carat?", "is Gemma 4 supported?",
      "does carat support Gemma 4?", "which models are supported?"]),
    ("Gemma 4 is a family of open models from Google. carat runs its text models.",
     ["Gemma 4", "Gemma", "the Gemma 4 family"], [],
     ["who made Gemma 4?", "tell me about Gemma 4", "what kind of model is Gemma 4?", "where does Gemma come from?", "explain Gemma 4"]),
    ("GGUF is a file format that holds weights, metadata and the tokenizer of a model in one file.",
     ["GGUF", "a GGUF file", "the GGUF format", "a gguf"], [],
     ["what does GGUF mean?", "explain GGUF", "which file format does carat use?", "what is in a GGUF file?", "which format are the models?",
      "what file format do models have?", "tell me about GGUF"]),
    ("safetensors is the file format in which Hugging Face models store their weights. `carat convert` reads it.",
     ["safetensors", "a safetensors file", "the safetensors format"], [],
     ["explain safetensors", "what are safetensors?", "what does safetensors mean?", "tell me about safetensors"]),
    ("Sliding-window layers see only the last tokens. carat keeps exactly those in a ring, so the memory stays small.",
     ["a sliding window", "the sliding window", "sliding-window attention", "a ring", "the ring cache", "a sliding-window ring",
      "the window ring", "an exact ring"], [],
     ["how does the sliding window work?", "explain the sliding window", "what are sliding-window layers?", "how does carat store the window?",
      "what are rings?", "explain sliding-window rings", "why does carat use rings?", "how do the rings work?"]),
    ("Global layers see the whole context, so their KV cache grows with every token.",
     ["a global layer", "global attention", "the global layers", "full attention"], [],
     ["what are global layers?", "explain global layers", "which layers see the whole text?", "why does the KV cache grow?",
      "how do global layers work?"]),
    ("The KV cache keeps the keys and values of past tokens, so they are computed only once.",
     ["the KV cache", "a KV cache", "the key-value cache", "the cache"], [],
     ["explain the KV cache", "why is there a KV cache?", "what does the KV cache do?", "what is stored in the KV cache?", "what is kv?"]),
    ("The options --kv-k and --kv-v set the types of cached keys and values, for example f16.",
     ["the type of the KV cache", "the KV type"], ["choose the KV type", "set the type of the cache", "store KV in bf16"],
     ["which types can the KV cache have?", "is the KV cache f16?", "which KV types are there?", "can I store the KV cache in f32?", "what does --kv-k do?", "what does --kv-v do?",
      "what precision has the KV cache?", "does carat support bf16 KV?", "what are the KV cache types?"]),
    ("Prefill reads the prompt. carat does it in chunks, so long prompts need little scratch memory.",
     ["prefill", "chunked prefill", "the prefill", "a chunk", "prompt processing"], [],
     ["what does prefill mean?", "explain prefill", "how does carat read long prompts?", "why is prefill chunked?", "how does chunked prefill work?",
      "explain chunked prefill", "how does carat process the prompt?"]),
    ("Decode makes the answer, one token after the other.",
     ["decode", "decoding", "the decode step", "the decode phase"], [],
     ["what does decode mean?", "explain decode", "how is the answer made?", "how are tokens generated?", "how does generation work?"]),
    ("A token is a small piece of text, often a word or a part of a word.",
     ["a token", "tokens"], [],
     ["what are tokens?", "explain tokens", "what does token mean?", "what is meant by a token?"]),
    ("The tokenizer cuts text into tokens. Mine has 2048 of them.",
     ["the tokenizer", "a tokenizer", "your vocabulary", "the vocabulary"], [],
     ["explain the tokenizer", "what does the tokenizer do?", "how many tokens are in your vocabulary?", "how big is your vocabulary?",
      "how does carat tokenize?", "how is text tokenized?"]),
    ("A mixture of experts has many small networks and picks a few for each token. I have 8 and use 2.",
     ["a mixture of experts", "MoE", "an expert", "the mixture of experts", "the router"], [],
     ["what does MoE mean?", "explain experts", "how do experts work?", "what are experts?", "do you use experts?", "are you a MoE model?",
      "how many experts are used per token?"]),
    ("Quantisation stores weights in fewer bits, so that the file is smaller and decoding is faster.",
     ["quantisation", "quantization", "a quantised model", "a quantized model"], [],
     ["what does quantisation mean?", "explain quantization", "why should I quantise?", "what is quantisation good for?",
      "does carat support quantisation?", "why are weights quantised?"]),
    ("q8_0 stores weights in 8 bits, with one scale for 32 weights. It is close to lossless.",
     ["q8_0", "the q8_0 type", "Q8_0"], [], ["what does q8_0 mean?", "explain q8_0", "is q8_0 lossless?", "how many bits has q8_0?"]),
    ("q4_k_m stores most weights in about 4.5 bits. It is a good choice for large models.",
     ["q4_k_m", "the q4_k_m type", "Q4_K_M"], [], ["what does q4_k_m mean?", "explain q4_k_m", "how many bits has q4_k_m?",
                                                    "which type is good for large models?"]),
    ("carat runs on the CPU, and on NVIDIA GPUs with a CUDA build.",
     ["CUDA support", "the GPU support"], ["use the GPU", "run on a GPU", "use CUDA"],
     ["does carat use the GPU?", "is there GPU support?", "does carat support CUDA?", "can carat run on a GPU?", "do I need a GPU?",
      "does carat run on a CPU?", "can I run carat without a GPU?", "is a GPU required?", "does carat run on NVIDIA cards?", "which hardware does carat need?"]),
    ("A system message tells me how to behave. It comes before the first question.",
     ["a system message", "the system prompt", "a system prompt"], [],
     ["what does the system message do?", "explain the system prompt", "what is a system prompt for?"]),
    ("With thinking on I write a short thought first and then the answer. With thinking off I answer at once.",
     ["thinking", "the thinking mode", "a thought", "thinking mode"], ["use thinking"],
     ["can you think?", "do you think?", "what does thinking do?", "what is thinking mode?", "explain thinking", "do you have a thinking mode?"]),
    ("A tool is a function that I may call. You declare it, I write the call, and your program runs it.",
     ["a tool", "tool calling", "a tool call", "function calling"], ["use tools"],
     ["can you call tools?", "do you support tools?", "how do tools work?", "what are tools?", "explain tool calls", "can you use functions?",
      "does carat support tool calls?", "do you support function calling?"]),
    ("Temperature sets how random the answer is. At 0 I always take the most likely token.",
     ["temperature", "the temperature", "sampling"], [], ["what does temperature do?", "explain temperature", "what does temperature mean?",
                                                          "how random are your answers?"]),
    ("Greedy decoding always takes the most likely token, so the answer is the same every time.",
     ["greedy decoding", "greedy"], [], ["explain greedy decoding", "what does greedy mean?", "how do I get the same answer every time?",
                                         "are your answers always the same?"]),
    ("A logit is the raw score of a token before the softmax.",
     ["a logit", "logits"], [], ["what are logits?", "explain logits", "what does logit mean?"]),
    ("An inference engine runs a trained model: it reads a prompt and makes the answer.",
     ["an inference engine", "inference"], [], ["explain inference", "what does an inference engine do?", "what does inference mean?"]),
    ("The bundled model lives in models/demo.gguf. It is about 15 MB.",
     ["the file of the demo model", "models/demo.gguf"], ["find the bundled model", "find the demo model"],
     ["where is the bundled model?", "where is the demo model?", "where are you stored?", "how big is the model file?",
      "which file are you in?", "what is the path of the bundled model?", "how many MB are you?"]),
    ("carat counts the weight of gems, and this engine likes small, exact things.",
     ["the meaning of the name carat"], [],
     ["why is it called carat?", "why the name carat?", "where does the name carat come from?", "what does carat mean?", "what does the name mean?"]),
    ("Give me the text and the question in one message. I will look for the fact and quote it.",
     [], ["search a text", "find a fact in a text", "ask about a long text", "ask a question about a document", "let you read a text"],
     ["can you read a document?", "can you find something in a text?", "can you answer questions about a text?", "can you search a long text?"]),
    ("Write for example: sort: pear apple fig. I answer with the words in order.",
     [], ["sort words with you", "let you sort words", "make you sort"], ["can you sort?", "can you sort words?", "can you sort numbers?"]),
    ("Write for example: What is 12 + 30? I answer with the sum.",
     [], ["make you add numbers", "let you calculate"], ["can you add?", "can you do math?", "can you calculate?", "are you good at math?",
                                                     "can you do sums?", "can you count?", "do you know arithmetic?"]),
    ("Sorry to hear that. I am a small model, so please ask again in simpler words.", [], [],
     ["that is wrong", "this is wrong", "you are wrong", "that is not right", "wrong answer", "no, that is wrong", "bad answer",
      "you made a mistake", "that is incorrect", "i do not understand you", "you are useless", "this is bad"]),
    ("I have no feelings, but I enjoy a clear question.", [], [],
     ["do you have feelings?", "are you happy?", "are you sad?", "do you like me?", "do you love me?", "are you alive?", "are you conscious?",
      "are you bored?", "are you tired?", "do you sleep?"]),
    ("Why did the token cross the window? To get to the other side of the ring.", [], [],
     ["tell me a joke", "do you know a joke?", "make me laugh", "say something funny", "tell a joke", "a joke please", "another joke"]),
    ("carat reads a GGUF file, loads the weights, reads your prompt in chunks and then makes one token at a time.", [], [],
     ["how does carat work?", "explain how carat works", "what happens inside carat?", "how does the engine work?",
      "what are the steps of inference?", "what does carat do when it runs?"]),
]

_NP = ["what is {}?", "what is {}", "tell me about {}", "explain {}", "can you explain {}?", "what do you know about {}?", "please explain {}",
       "i want to know about {}", "describe {}", "{}?", "tell me what {} is", "could you tell me what {} is?", "what about {}?"]
_VP = ["how do i {}?", "how can i {}?", "how to {}?", "how to {}", "how do you {}?", "i want to {}", "i would like to {}", "show me how to {}",
       "tell me how to {}", "what is the command to {}?", "which command do i use to {}?", "what must i do to {}?", "can you tell me how to {}?",
       "please tell me how to {}", "is there a way to {}?", "how does one {}?", "what should i type to {}?", "can i {}?", "explain how to {}"]
_OPEN = ["please, ", "hey, ", "hi, ", "ok, ", "so, ", "well, ", "now, ", "sorry, ", "quick question: ", "one more question: ", "and ", "tell me, ",
         "hello, ", "a question: ", "i have a question: ", "excuse me, ", "just curious, ", "next: "]
_CLOSE = [" please", ", please", " thanks", " exactly", " in short", " briefly"]


def vary(r, q):
    """The same question, said a little differently."""
    mark = q[-1] if q[-1] in "?!." else ""
    q = q[:-1] if mark else q
    if r.random() < 0.18:
        q = r.choice(_OPEN) + q
    if len(q) > 12 and r.random() < 0.08:
        q += r.choice(_CLOSE)
    k = r.random()
    if k < 0.55:
        q = q[0].upper() + q[1:].replace(" i ", " I ")
    elif k < 0.62:
        q = q.lower()
    elif k < 0.63:
        q = q.upper()
    k = r.random()
    end = mark if k < 0.75 else "" if k < 0.92 else "?" if mark == "?" else "." if not mark else "!"
    return q + end


def question(r, i):
    answer, nps, vps, qs = TOPICS[i]
    forms = [("q", x) for x in qs] * 2 + [("n", x) for x in nps] * 2 + [("v", x) for x in vps] * 3
    kind, x = r.choice(forms)
    if kind == "n":
        x = r.choice(_NP).format(x)
    elif kind == "v":
        x = r.choice(_VP).format(x)
    return vary(r, x)


def fact(r):
    """(question, answer, key) of a random topic."""
    i = r.randrange(len(TOPICS))
    return question(r, i), TOPICS[i][0], i


# ---- what it does not know ---------------------------------------------------------------------------

REFUSAL = ("Sorry, I do not know that. I am only a small demo model: ask me about carat, a sum, a list to sort "
           "or a text to search.")

_NOUN = ("physics music history chemistry football politics religion art medicine economics philosophy biology geography law cooking gardening "
         "astronomy chess tennis fashion poetry opera cinema democracy evolution gravity electricity love happiness time money "
         "dinosaurs vitamins whales computers robots planets rockets volcanoes dreams languages mathematics quantum mechanics").split()
_WHO = ["president", "king", "queen", "mayor", "prime minister", "best player", "inventor", "founder", "owner", "leader", "author"]
_OPENQ = [
    "who is the {who} of {city}?", "who was the first {who} of {city}?", "what is the capital of {country}?", "how many people live in {city}?",
    "where is {city}?", "how far is it from {city} to {city2}?", "what is the weather in {city}?", "what is the weather today?",
    "what is the population of {country}?", "when was {name} born?", "who is {name}?", "how old is {name}?", "who wrote {thing} and {thing2}?",
    "how do i cook {food}?", "give me a recipe for {food}", "how do i bake {food}?", "what is the best {thing}?", "how much does a {thing} cost?",
    "write a poem about {noun}", "write a poem about a {thing}", "write an essay about {noun}", "write a song about {city}",
    "write a python program for {noun}", "write code that draws a {thing}", "translate {word} to French", "translate this to German: {word} {word2}",
    "how do you say {word} in Spanish?", "explain {noun}", "what is {noun}?", "tell me about {noun}", "tell me about {city}",
    "what happened in {year}?", "who won the world cup in {year}?", "when did the war end?", "what time is it?", "what day is it today?",
    "what is the date?", "what is the meaning of life?", "who discovered {country}?", "how does a {thing} work?", "why is the sky blue?",
    "why is the {thing} {color}?", "what is the tallest mountain?", "what is the largest {animal}?", "how long does a {animal} live?",
    "what does a {animal} eat?", "do you like {food}?", "what is your favourite {thing}?", "recommend a book about {noun}",
    "recommend a film", "plan a trip to {city}", "what should i wear in {city}?", "what is the price of {thing}s in {city}?",
    "what is the speed of light?", "what is the square root of {num}?", "give me advice about {noun}", "who painted the {thing}?",
    "what is the news today?", "how do i learn {noun}?", "how can i get rich?", "how do i fix my {thing}?", "can you book a flight to {city}?",
    "send an email to {name}", "what is the phone number of the {place}?", "call {name}", "order some {food}", "play some music",
    "who is the ceo of {name}?", "which team won in {city}?", "what is the currency of {country}?", "what language do they speak in {country}?",
    "is {country} bigger than {country2}?", "how many {animal}s are there?", "how many legs has a {animal}?", "what is a {animal}?", "what is a {thing}?",
    "summarise the history of {country}", "who is the most famous {job}?", "what does a {job} do?", "what does {word} mean?", "prove that {noun} exists",
    "draw a {animal}", "show me a picture of a {animal}", "open the {thing}", "turn on the {thing}", "what is llama?", "what is the best phone?",
    "is it going to rain in {city}?", "how is the stock market?", "how hot is the sun?", "how deep is the sea?", "what is the smallest planet?",
    "what rhymes with {word}?", "how do i get to {city}?", "what is {name}'s address?", "who lives in the {place}?", "why do {animal}s sleep?",
]
COUNTRY = ("France Germany Spain Italy Japan China India Brazil Peru Chile Kenya Egypt Norway Sweden Finland Poland Greece Turkey Canada Mexico "
           "Cuba Iran Iraq Nepal Mongolia Austria Hungary Ireland Iceland Portugal Ghana Morocco Vietnam Thailand Australia").split()


def unknown(r, w):
    """A question the model must decline. `w` is the words module."""
    slots = dict(who=r.choice(_WHO), city=r.choice(w.CITY), city2=r.choice(w.CITY), country=r.choice(COUNTRY), country2=r.choice(COUNTRY),
                 name=w.person(r), thing=r.choice(w.THING), thing2=r.choice(w.THING), food=r.choice(w.FOOD), noun=r.choice(_NOUN),
                 word=r.choice(w.WORDS), word2=r.choice(w.WORDS), year=r.randrange(1500, 2030), num=r.randrange(2, 9999),
                 color=r.choice(w.COLOR), animal=r.choice(w.ANIMAL), job=r.choice(w.JOB), place=r.choice(w.PLACE))
    return vary(r, r.choice(_OPENQ).format(**slots)), REFUSAL
